"""Telling and counting which variants were chosen."""

import logging
from types import SimpleNamespace

import pytest

from gemmill import settings
from gemmill.family.tuning import Reach
from gemmill.runtime import chosen, notices, ops
from gemmill.runtime.choosing import Trust
from gemmill.runtime.chosen import ChoiceLog, Chosen, chosen_in
from gemmill.runtime.noted import Notes
from gemmill.runtime.select import Noted


def noted(call, trust: Trust, variant: str = "some_variant") -> Noted:
    return Noted(call=call, variant=variant, trust=trust)


def test_each_shape_is_told_once(shaped_call, caplog) -> None:
    """For each bucket of its rows, and for each variant there."""
    caplog.set_level(logging.INFO, logger="gemmill")
    log = ChoiceLog()
    assert log.hear([noted(shaped_call(m=16), Trust.EXACT), noted(shaped_call(m=17), Trust.NEAREST)])
    assert log.hear([noted(shaped_call(m=m), Trust.EXACT) for m in (1, 7, 15, 16, 18, 31, 32)])
    assert log.hear([noted(shaped_call(m=33), Trust.MODEL), noted(shaped_call(m=64), Trust.MODEL)])
    assert log.hear([noted(shaped_call(m=40), Trust.MODEL, "another")])
    what = "e4m3 x e4m3 to bf16 with a bias, M x N x K of"
    way_out = "GEMMILL_RECORD_MISSES=FILE notes such shapes, `gemmill tune --misses FILE` measures them"
    assert caplog.messages == [
        f"{what} 16 x 4096 x 4096: some_variant (measured there)",
        f"{what} 17 x 4096 x 4096: some_variant (measured near there; {way_out})",
        f"{what} 33 x 4096 x 4096: some_variant (by the model: no variant of the build was measured there; {way_out})",
        f"{what} 40 x 4096 x 4096: another (by the model: no variant of the build was measured there; {way_out})",
    ]


def test_many_rows_are_few_lines(shaped_call, caplog) -> None:
    """An engine that starts meets each number of rows."""
    caplog.set_level(logging.INFO, logger="gemmill")
    ChoiceLog().hear([noted(shaped_call(m=m), Trust.EXACT) for m in range(1, 8193)])
    assert len(caplog.messages) == 1 + 9, "up to 16 rows, and to each power of two from 32 on"


@pytest.mark.parametrize(
    ("few", "size", "bucket"), [(16, 1, 16), (16, 16, 16), (16, 17, 32), (0, 1, 1), (0, 3, 4), (0, 0, 0)]
)
def test_buckets_are_what_rows_are_measured_for(few: int, size: int, bucket: int) -> None:
    assert Reach(few=few, many=512, endless=4096, ratio=2, distance=0.1).bucket(size) == bucket


def test_what_is_told_is_bounded(shaped_call, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, logger="gemmill")
    monkeypatch.setattr(chosen, "MOST_TOLD", 2)
    assert not ChoiceLog().hear([noted(shaped_call(m=m), Trust.EXACT) for m in (1, 17, 33)])
    assert len(caplog.messages) == 2


class Listener:
    """Hears `wants` times."""

    def __init__(self, least_trust: Trust, wants: int) -> None:
        self.least_trust, self.wants, self.heard = least_trust, wants, []

    def hear(self, noted) -> bool:
        self.heard += [choice.call.sizes[0] for choice in noted]
        self.wants -= 1
        return self.wants > 0


def test_each_listener_hears_what_it_wants(shaped_call) -> None:
    class Build:
        taken = ()

        def note_choices(self, most: int, least_trust: Trust = Trust.NEAREST) -> None:
            self.asked = most, least_trust

        def take_noted(self, most: int):
            return self.taken

    build, all_, few = Build(), Listener(Trust.EXACT, 2), Listener(Trust.MODEL, 9)
    notes = Notes(few, all_)
    notes.add(build)
    assert build.asked == (1024, Trust.EXACT)
    build.taken = [noted(shaped_call(m=1), Trust.EXACT), noted(shaped_call(m=2), Trust.MODEL)]
    for _ in range(3):
        notes.flush()
    assert (all_.heard, few.heard) == ([1, 2] * 2, [2] * 3), "one that wants no more is asked no more"
    notes.close()
    assert build.asked == (0, Trust.NEAREST)


def test_the_setting_shows_choices_where_nobody_logs(monkeypatch, capsys) -> None:
    log = logging.Logger("gemmill")
    monkeypatch.setattr(notices, "LOG", log)
    monkeypatch.setattr(ops, "_notes", None)
    monkeypatch.delenv("GEMMILL_RECORD_MISSES", raising=False)
    monkeypatch.setenv("GEMMILL_LOG", "choices")
    (listener,) = ops._listeners()
    assert isinstance(listener, ChoiceLog)
    log.info("chosen")
    assert capsys.readouterr().err == "gemmill: chosen\n"
    monkeypatch.setenv("GEMMILL_LOG", "")
    assert ops._listeners() == []


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_messages_appear_in_an_engines_log(monkeypatch, level: str) -> None:
    """Once, from the level on that the engine shows, and with gemmill's name: engines show none."""
    log, engine = logging.Logger("gemmill"), logging.Logger("engine", level)
    shown = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append((record.name, record.getMessage()))
    engine.addHandler(handler)
    monkeypatch.setattr(notices, "LOG", log)
    monkeypatch.setattr(notices, "logging", SimpleNamespace(**vars(logging) | {"getLogger": lambda name: engine}))
    notices.show_in("engine")
    log.info("not for %s", "an engine that hands its messages on")
    engine.propagate = False
    for _ in range(2):
        notices.show_in("engine")
    log.info("a layer of %s", "nvfp4")
    log.warning("it stays")
    told = [("engine.gemmill", "gemmill: a layer of nvfp4"), ("engine.gemmill", "gemmill: it stays")]
    assert shown == told[level == "WARNING" :]


def test_an_unknown_word_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_LOG", "debug")
    with pytest.raises(ValueError) as caught:
        settings.logs_choices()
    assert str(caught.value) == (
        "GEMMILL_LOG is 'debug': it can be `choices`, which logs the variant of each shape, or unset"
    )


def test_counts_are_by_variant_class_and_trust(smoke_build, monkeypatch) -> None:
    table = smoke_build.table
    monkeypatch.setattr(
        type(smoke_build),
        "times_chosen",
        lambda self, row, trust: 3 * (row == 0 and trust is Trust.MODEL),
        raising=False,
    )
    entry = table.entries[0]
    (found,) = chosen_in([smoke_build])
    assert found == Chosen(
        build=smoke_build.build_id,
        variant=entry.name,
        ops=entry.ops,
        computes="e4m3 x e4m3 to bf16 with no bias",
        trust=Trust.MODEL,
        times=3,
    )
