"""Random calls of the operation, and comparison of a backend with the reference."""

from swila.testing.cases import VARIANTS as VARIANTS
from swila.testing.cases import Shape as Shape
from swila.testing.cases import Variant as Variant
from swila.testing.cases import make_call as make_call
from swila.testing.cases import problem_of as problem_of
from swila.testing.checks import Check as Check
from swila.testing.checks import check_backend as check_backend
from swila.testing.checks import evaluate as evaluate
from swila.testing.examination import Examination as Examination
from swila.testing.examination import examine as examine
