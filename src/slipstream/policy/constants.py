"""Every number that the policy does not measure, and its source. docs/policy.md has the effect of each."""

from __future__ import annotations

LOSS_SHARE = 0.02  # share of the time that may be lost on exploration; the goal is 0.98x of plain decoding
CREDIT = 0.5  # plain rounds that may be lost at once: 0.5 % of 100 tokens; a draft that may lose more needs a higher p
CAUTION = 0.5  # standard deviations between the expected p and its lower and upper estimates
UNKNOWN = 0.7  # the probability of an unknown token, usually of a draft model
PRIOR = 3.0  # accepted tokens, and as many rejected ones, that the earlier estimate weighs
BUCKETS = 6  # of confidence, within which tokens count as equal: enough to tell 0.9 from 0.7, few enough to fill
MEMORY = 0.98  # share of an observation that remains after the next: about 50 count
RECENT = 0.9  # the same for what changes within an answer: about 10 count
HOLD = 8  # rounds for which a decision holds: that a device continues with drafts, or that nothing is drafted
CHANGE = 0.6  # rounds lost by changing the length of such drafts: 0.46 ms where a round takes 0.77
STAY = 2.0  # times the time to start such rounds is what keeping them is worth: simulated, see docs/policy.md
MAX_DRAFT = 16  # tokens of a stream's draft: at 0.95 each, half of such drafts are accepted whole
FIRST_ROUNDS = 3  # whose median shows what the host takes; as many first drafts only warm up
SCALE_STEP = 0.02  # by which each round moves t(n) towards its own time: it follows a change of 20 % in ten rounds
FAR_OFF = 1.2  # of the expected time: ten steps of SCALE_STEP
SIZE_BITS = 3  # leading bits that tell sizes apart: exact to 16 rows, then in steps of an eighth, as kernels' steps are
