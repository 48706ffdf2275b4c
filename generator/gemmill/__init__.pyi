from gemmill.families.blockscaled.functions import *
from gemmill.families.fused_experts.functions import *
from gemmill.families.gated_mm.functions import *
from gemmill.families.grouped_mm.functions import *
from gemmill.families.kv_cache.functions import *
from gemmill.families.quant.functions import *
from gemmill.families.routing.functions import *
from gemmill.families.scaled_mm.functions import *
from gemmill.families.sparse_mm.functions import *
from gemmill.runtime.holding import (
    batch_invariant as batch_invariant,
)
from gemmill.runtime.holding import (
    set_batch_invariant as set_batch_invariant,
)
from gemmill.runtime.ops import (
    active as active,
)
from gemmill.runtime.ops import (
    assume_constant_weights as assume_constant_weights,
)
from gemmill.runtime.ops import (
    check_ranks as check_ranks,
)
from gemmill.runtime.ops import (
    explain as explain,
)
from gemmill.runtime.ops import (
    load as load,
)
from gemmill.runtime.ops import (
    stats as stats,
)
from gemmill.runtime.ops import (
    supports as supports,
)
from gemmill.runtime.ops import (
    table_digest as table_digest,
)
from gemmill.runtime.ops import (
    use_variant as use_variant,
)
from gemmill.runtime.ops import (
    variants as variants,
)
from gemmill.runtime.served import serving_report as serving_report
from gemmill.tuning import tune as tune
from gemmill.version import __version__ as __version__

__all__: list[str]
