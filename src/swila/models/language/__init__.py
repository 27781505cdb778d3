"""Language models for transformers: ``from swila import SwiLAConfig, SwiLAModel, SwiLAForCausalLM``."""
