"""Random calls of every op, right ones held against the reference and broken ones against their sentence.

How a call is made (`calls.py`, `gemm_calls.py`, `quant_calls.py`, `breakages.py`) knows the ops; what runs, guards and judges
it (`memory.py`, `judging.py`, `child.py`, `campaign.py`) knows nothing of them but their reference.
"""
