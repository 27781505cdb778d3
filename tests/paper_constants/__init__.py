"""The constants of the paper, as rows of place, subject, path and value."""
