"""The doctor from Python: will this model, this draft and this machine work together, and if not, why?"""

import sys

import slipstream

target = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
draft = sys.argv[2] if len(sys.argv) > 2 else None

diagnosis = slipstream.doctor(slipstream.DoctorOptions(target=target, draft=draft))
print(diagnosis.verdict)
for finding in diagnosis.findings:
    print(f"\n{finding.severity}: {finding.id}")
    print(f"  seen:  {finding.evidence}")
    print(f"  means: {finding.cause}")
    print(f"  do:    {finding.fix}")

sys.exit(1 if diagnosis.is_blocked else 0)
