"""Reports: results as text, Markdown, figures and HTML pages."""
