"""The exact blocked algorithm: its listing (``algorithm``), decays without overflow, chunks of tokens, the backend."""
