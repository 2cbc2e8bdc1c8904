"""The answer: plans, their checker, their price, their files."""
