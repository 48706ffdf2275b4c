"""Random calls of every op. Right ones are held against the reference, broken ones against their sentence.

The op's family makes a call and judges it (its `cases`). The parts here break, run and guard calls, and know no op.
"""
