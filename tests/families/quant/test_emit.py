"""Every field of a QuantConfig reaches its template."""

import pytest

from gemmill.emit import emit
from gemmill.families.quant.config import QuantConfig, all_configs
from gemmill.space.names import symbol_of, to_name


def body(config: QuantConfig) -> str:
    text = emit(config).text
    return text.replace(to_name(config), "NAME")


def test_different_configs_have_different_sources() -> None:
    bodies: dict[str, str] = {}
    for config in all_configs():
        # The launch function's name apart: instances must differ too.
        text = body(config)
        assert text not in bodies, f"{to_name(config)} and {bodies[text]} have the same source"
        bodies[text] = to_name(config)


@pytest.mark.parametrize("config", list(all_configs())[::7], ids=to_name)
def test_the_source_defines_the_symbol_and_lies_under_the_architecture(config: QuantConfig) -> None:
    emitted = emit(config)
    assert f'extern "C" int32_t {symbol_of(config)}(' in emitted.text
    assert str(emitted.path) == f"{config.arch}/quant/{to_name(config)}.cu"
