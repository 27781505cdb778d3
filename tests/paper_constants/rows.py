"""What a row is, and the places in the paper that rows name."""

OPEN = "not in the paper"
SECTION_51, SECTION_52, SECTION_53 = "section 5.1", "section 5.2", "section 5.3"
APP_51 = "App. D, Approximating Softmax Attention"
APP_CDAR = "App. D, Context-Dependent Associative Recall"
APP_REGBENCH = "App. D, RegBench"
APP_LM = "App. D, Pretraining Language Models"
APP_THROUGHPUT = "App. D, Throughput Comparison"
APP_ABLATION = "section 5.5 and App. D, Ablation Study"
APP_LAYER = "App. B, Details of the SwiLA Layer"
APP_GATED = "App. B, Gated SwiLA Details"


def rows(place, subjects, **expected):
    """A row for each subject and value; ``__`` stands for the dot in a path."""
    names = [subjects] if isinstance(subjects, str) else subjects
    return [(place, name, path.replace("__", "."), wanted) for name in names for path, wanted in expected.items()]


def each(experiment, models):
    return [f"{experiment} {model}" for model in models]
