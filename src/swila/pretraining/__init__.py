"""Pretraining of language models: recipes, and the engine that runs them on one CPU, one GPU or many."""
