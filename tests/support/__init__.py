"""What tests share, by subject."""

import os

# With threads of their own, the small matrix products of one test wait, spinning, for a processor
# that another test has: on two cores that two processes share, planning took ten times as long, and
# so did the training of students. Each library reads its limit when it is first imported.
for library in ("OMP", "OPENBLAS"):  # torch's threads, and numpy's
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
