"""Random calls of every op, right ones held against the reference and broken ones against their sentence.

The op's family makes a call and judges it (its `cases`); what breaks, runs and guards it here knows no op.
"""
