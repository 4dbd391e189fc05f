"""What connects tierank with the tools that people track experiments in; each module needs its own library."""
