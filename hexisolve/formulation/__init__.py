"""What is decided, as relaxed prices, tables and linear models: no solver is imported here."""
