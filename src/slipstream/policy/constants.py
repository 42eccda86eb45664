"""Every number that the policy does not measure, and what it comes from. docs/policy.md says what each is worth."""

from __future__ import annotations

LOSS_SHARE = 0.02  # of the time may be lost on finding out: what is left is the promise, 0.98x of plain decoding
CREDIT = 0.5  # plain rounds that may be lost at once: 0.5 % of 100 tokens; a draft that may lose more has to be surer
CAUTION = 0.5  # standard deviations of p that the lower and the upper estimate lie off the expected one
UNKNOWN = 0.7  # the chance of a token that nothing is known of, a draft model's as a rule
PRIOR = 3.0  # tokens taken, and as many not, that what was believed before weighs against what is seen
BUCKETS = 6  # of confidence, within which tokens count as alike: enough to tell 0.9 from 0.7, few enough to fill
MEMORY = 0.98  # of an observation is left after the next: about 50 count
RECENT = 0.9  # the same for what changes within an answer: about 10 count
MAX_DRAFT = 16  # tokens of a stream's draft: at 0.95 each, half of such drafts are taken whole
FIRST_ROUNDS = 3  # of which the median is what the host takes; as many first drafts prepare what later ones find
FOLLOW = 0.02  # by which t(n) moves with each round towards what it took: it follows a change of 20 % in ten rounds
SIZE_BITS = 3  # that tell sizes apart: exact to 16 rows, then in steps of an eighth, as kernels' steps are
