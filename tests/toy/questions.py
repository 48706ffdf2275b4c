"""The options of a command line that describe its calls."""

from gemmill.questions import Asked

QUESTIONS = (
    Asked(name="length", flags="--length", least=0, help="Pages of a toy", required=True, is_size=True),
    Asked(name="page", flags="--page", least=0, help="Numbers of a toy's page", required=True, is_size=True),
)
