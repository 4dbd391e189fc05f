"""Training: what turns data and settings into a fitted model. Trees and networks each have a module of their own."""
