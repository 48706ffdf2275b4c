"""Random calls of attention over a cache of latents, and how far results may be from the reference."""

import math
from collections.abc import Mapping

import torch

from gemmill.arithmetic import FLOAT32_UNIT
from gemmill.families.kv_cache.bounds import F16, lse_limit, output_limit, stored_attention_bound
from gemmill.families.kv_cache.cases.held import Given, Held
from gemmill.families.kv_cache.cases.laid import call as laid_call
from gemmill.families.kv_cache.cases.laid import vectors
from gemmill.families.kv_cache.config import DTYPES
from gemmill.families.kv_cache.formats import PAGE_SIZES
from gemmill.families.kv_cache.latent import E4M3_TOKEN_BYTES, LATENT_DIM, LATENT_FORMATS, ROTARY_DIM, TOKEN_BYTES
from gemmill.families.kv_cache.latent_ops import LATENT
from gemmill.families.kv_cache.reference.latent import attended, options_of, sequences
from gemmill.families.kv_cache.reference.vectors import decode
from gemmill.family import Judged
from gemmill.numerics.call import LegalCall
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, free_stride, matrix, torch_dtype, vector
from gemmill.numerics.memory import Slot


def held(call: Judged, before: Given, after: Given) -> Mapping[str, Held]:
    """The results of a call, with the reference's and their limits."""
    wanted, wanted_lse = attended(call, dict(before))
    options, rotated_out = options_of(call), bool(call["rotated_out"]) or call["seed"] < 0
    limits, lse_limits = torch.zeros_like(wanted), torch.zeros_like(wanted_lse)
    for i, x in enumerate(sequences(call, dict(before))):
        beyond = x.rotary_scores, x.rotary_magnitudes
        bound = stored_attention_bound(x.q, x.stored, x.length, options, F16, rotated_out=rotated_out, beyond=beyond)
        limits[i] = output_limit(wanted[i], bound, x.length, before["q"].dtype)
        keys = decode(x.stored.keys, x.stored.key_spec).rotated
        norms = keys.square().sum(-1).sqrt().nan_to_num().amax(0) if x.length else keys.new_zeros(1)
        rotary = x.rotary_magnitudes.nan_to_num().amax(-1) if x.length else torch.zeros_like(wanted_lse[i])
        lse_limits[i] = lse_limit(x.q, norms.expand(call["heads"]), wanted_lse[i], options, F16)
        lse_limits[i] += 64 * FLOAT32_UNIT * options.scale * rotary
    found = {"out": Held(after["out"], wanted, limits)}
    if after.get("lse") is not None:
        found["lse"] = Held(after["lse"], wanted_lse, lse_limits)
    return found


def drawn_latent(draw: Draw) -> LegalCall:
    """A random call."""
    dtype, page, pages, table_pages = (
        torch_dtype(draw.one_of(DTYPES)),
        draw.one_of(PAGE_SIZES),
        draw.below(4),
        draw.below(4),
    )
    batch, rows, heads = draw.one_of((0, 1, 1, 2, 3)), draw.one_of((0, 1, 1, 3)), draw.one_of((1, 1 + draw.below(40)))
    token = draw.one_of((TOKEN_BYTES, E4M3_TOKEN_BYTES))
    step = page * token + draw.one_of((0, 0, 16, 256))
    shape = (pages, page, token)
    slots = {
        "out": vectors(draw, dtype, (batch, rows, heads, LATENT_DIM), draw.chance(TIDY), written=True),
        "q": vectors(draw, dtype, (batch, rows, heads, LATENT_DIM + ROTARY_DIM), draw.chance(TIDY)),
        "cache": Slot(
            dtype=torch.uint8,
            shape=shape,
            strides=(free_stride(draw, pages, step), token, 1),
            rows=pages,
            columns=page * token,
            row_stride=step,
            column_stride=1,
            values=draw.one_of(("bounds", "bounds", "bounds", "codes")),
            written=False,
            shift=draw.one_of((0, 0, 16, 48)),
            reference_shape=shape,
        ),
        "block_table": matrix(draw, torch.int32, batch, table_pages, "codes"),
        "seq_lens": vector(draw, torch.int32, batch, "codes", ((batch,),), reference_shape=(batch,)),
    }
    if draw.chance(0.7):
        of_lse = (batch, heads, rows)
        slots["lse"] = vector(
            draw, torch.float32, math.prod(of_lse), None, (of_lse,), written=True, reference_shape=of_lse
        )
    if token == E4M3_TOKEN_BYTES and draw.chance(0.7):
        slots["key_scales"] = vector(draw, torch.float32, 1, "scales", ((1,),), reference_shape=(1,))
    plain = {
        "format": draw.one_of(tuple(LATENT_FORMATS)),
        "scale": draw.one_of((192**-0.5, 1.0)),
        "seed": -1 if draw.chance(0.2) else draw.below(1 << 40),
        "causal": draw.chance(0.7),
        "rotated_out": draw.chance(0.2),
    }
    return laid_call(LATENT.name, draw, slots, plain)
