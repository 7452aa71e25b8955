"""Runs a script of the transformers library under nullcuda, which has no values to read back: replaces the only check that reads
values, whether positions are those of several packed sequences, by its result.

    python values.py train.py ...
"""

import runpy
import sys

from transformers import masking_utils

find = masking_utils.find_packed_sequence_indices


def find_none(position_ids):
    find(position_ids)  # requests memory


masking_utils.find_packed_sequence_indices = find_none
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
