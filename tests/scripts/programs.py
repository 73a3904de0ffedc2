"""Programs that a script starts: what they print, how they end, what they find around them."""

import os
import subprocess
import sys
import tempfile

WORLD = ("RANK", "WORLD_", "LOCAL_", "MASTER_", "GROUP_", "TORCHE", "OMP_", "CUDA", "NCCL", "GLOO")


def note(word):
    command = f"echo {word} >> calls.txt; echo said {word}"
    return subprocess.run(command, shell=True, capture_output=True, text=True)


print(note("run"))
print(os.system("echo system >> calls.txt; exit 3"), subprocess.getoutput("echo a; echo b >&2"))
print(os.popen("echo popen").read(), subprocess.check_output(["printf", "a\\n\\377"]))
for command in (["false"], ["/no/such/program"], ["/etc/passwd"], ["sleep", "9"]):
    try:
        subprocess.run(command, check=True, timeout=0.5 if command[0] == "sleep" else None)
    except (subprocess.SubprocessError, OSError) as error:
        print(
            type(error), getattr(error, "returncode", None), getattr(error, "filename", None), error.args[:1]
        )
with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cat:
    print("one\ntwo", file=cat.stdin)
    cat.stdin.close()
    print([line for line in cat.stdout], type(cat))
print(cat.returncode, cat)
with open("log.txt", "w") as log:
    print("head", file=log, flush=True)
    print(subprocess.call(["sh", "-c", "echo body; exit 2"], stdout=log))
handle, path = tempfile.mkstemp()
os.write(handle, b"b\na\n")
os.close(handle)
subprocess.run(["sort", "-o", path, path], check=True)
print(open("log.txt").read(), open(path).read(), os.remove(path))
inner = "import os; print(sorted(os.environ), os.environ.get('OMP_NUM_THREADS'))"
seen = subprocess.check_output([sys.executable, "-c", inner], text=True)
print(seen == f"{sorted(os.environ)} {os.environ.get('OMP_NUM_THREADS')}\n")
print([name for name in os.environ if name.startswith(WORLD)])
