"""Adapters to engines and training frameworks, a module each; each imports its framework, and nothing else does."""
