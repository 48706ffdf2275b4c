"""Random calls of every op. The fuzzer compares results of right calls with the reference, and errors of broken ones
with their sentence.

The op's family makes a call and checks it (its `cases`). The parts here break, run and guard calls, and know no op.
"""
