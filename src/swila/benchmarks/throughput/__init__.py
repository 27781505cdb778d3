"""The paper's efficiency figures: throughput and peak memory of whole models in training (S3) and generation (S4)."""
