"""Check the sum of a plan as a person would."""

from collections.abc import Sequence

from greenline.budget.sum import Line


def results(lines: Sequence[Line]) -> list[int]:
    """Compute the sum as a person would, and check each result against what is shown."""
    value, found = 0, []
    for line in lines:
        match line.sign:
            case "":
                value = line.number
            case "+":
                value += line.number
            case "-":
                value -= line.number
            case "/":
                value //= line.number
            case "<=":
                value = min(value, line.number)
            case "=":
                assert value == line.number, line
                found.append(value)
    return found
