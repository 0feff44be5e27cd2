"""Compare a figure with what was promised of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether a promise was kept (None: it is unknown), and the sentence that says so."""

    kept: bool | None
    text: str


def at_least(what: str, figure: float, promised: float, aim: float | None = None) -> Verdict:
    """Judge a *figure* that is to be *promised* or more."""
    kept = figure >= promised
    aimed = "" if aim is None else f", {'reaches' if figure >= aim else 'below'} the aim {aim:g}"
    return Verdict(kept, f"{what}: {figure:.2f}, {_word(kept)} the floor {promised:g}{aimed}")


def at_most(what: str, figure: float, promised: float, doubt: str | None = None) -> Verdict:
    """Judge a *figure* that is to be *promised* or less; with a *doubt* a miss is not reported."""
    kept = figure <= promised
    text = f"{what}: {figure:.2f}, {_word(kept)} the limit {promised:g}"
    if kept or doubt is None:
        return Verdict(kept, text)
    return Verdict(None, f"{text}, NOT JUDGED: {doubt}")


def status(verdicts: list[Verdict]) -> int:
    """Print *verdicts* and return the exit status: 1 when one was missed."""
    for verdict in verdicts:
        print(verdict.text)
    return 1 if any(verdict.kept is False for verdict in verdicts) else 0


def _word(kept: bool) -> str:
    return "keeps" if kept else "MISSES"
