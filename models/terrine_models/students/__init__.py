"""Students: what learns from bought labels. It needs the extra `student`."""

from importlib.util import find_spec

_lacking = [name for name in ("safetensors", "scipy") if find_spec(name) is None]
if _lacking:
    raise ModuleNotFoundError(
        f"Students need {' and '.join(_lacking)}, of the extra student, which is not installed. In "
        "a checkout: pip install '.[student]'. To ask for labels alone, terrine_client needs none.",
        name=_lacking[0],
    )
