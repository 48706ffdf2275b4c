from gemmill.checkpoints.convert import quantize_checkpoint as quantize_checkpoint
from gemmill.nn.model import quantize_module as quantize_module
from gemmill.quantize.block_folding import PrepackedBlocks as PrepackedBlocks
from gemmill.quantize.block_folding import folding_share as folding_share
from gemmill.quantize.block_folding import prepack_blocks as prepack_blocks
from gemmill.quantize.errors import LayerError as LayerError
from gemmill.quantize.errors import layer_error as layer_error
from gemmill.quantize.experts import PackedExperts as PackedExperts
from gemmill.quantize.experts import PackedGatedExperts as PackedGatedExperts
from gemmill.quantize.experts import prepack_experts as prepack_experts
from gemmill.quantize.experts import prepack_gated_experts as prepack_gated_experts
from gemmill.quantize.gate_up import PackedGateUp as PackedGateUp
from gemmill.quantize.gate_up import PackedGateUpExperts as PackedGateUpExperts
from gemmill.quantize.gate_up import prepack_gate_up as prepack_gate_up
from gemmill.quantize.gate_up import prepack_gate_up_experts as prepack_gate_up_experts
from gemmill.quantize.rotation import fold_rotation as fold_rotation
from gemmill.quantize.sparsity import ExpertError as ExpertError
from gemmill.quantize.sparsity import prune_to_fp4 as prune_to_fp4
from gemmill.quantize.sparsity import pruned as pruned
from gemmill.quantize.weights import WEIGHT_FORMATS as WEIGHT_FORMATS
from gemmill.quantize.weights import QuantizedWeight as QuantizedWeight
from gemmill.quantize.weights import quantize_weight as quantize_weight

__all__: list[str]
