"""Programs that use no socket: a shell's pipeline, exit statuses, signals, standard input, job
control.
"""

import signal
import subprocess

from _case import *

say(
    subprocess.run(
        "seq 100000 | sort -rn | head -1 | tr 0 o", shell=True, capture_output=True
    ).stdout
)
say(
    subprocess.run(
        "cat | wc -c", shell=True, input=bytes(1 << 20), capture_output=True
    ).stdout.split()
)
say(subprocess.run("exit 7", shell=True).returncode)
sleeper = subprocess.Popen(["sleep", "60"])
sleeper.send_signal(signal.SIGTERM)
say(sleeper.wait())
say(subprocess.run("kill -9 $$", shell=True).returncode)
say(
    subprocess.run(
        "(sleep 0.05; echo later) & echo now; wait", shell=True, capture_output=True
    ).stdout
)
say(subprocess.run(["false"]).returncode, outcome(subprocess.run, ["/no/such/program"]))
