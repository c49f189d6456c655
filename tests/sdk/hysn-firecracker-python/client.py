"""A Linux guest by hysn-firecracker-python, which starts `firecracker` from where it always does.

Arguments: kernel, initramfs, an image with a file system, a directory for the snapshot.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

kernel, initramfs, image, directory = sys.argv[1:]
# The guest's vsock port on which its agent serves HTTP, and how long a guest may take: its kernel
# may be interpreted, beside others.
AGENT = 1024
BOOT = 300


class NoContainers(BaseHTTPRequestHandler):
    """All that the SDK asks of a container engine when no image is to be had from one."""

    def do_GET(self):
        answer = json.dumps({"ApiVersion": "1.44"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


engine = HTTPServer(("127.0.0.1", 0), NoContainers)
threading.Thread(target=engine.serve_forever, daemon=True).start()
os.environ["DOCKER_HOST"] = f"tcp://127.0.0.1:{engine.server_port}"

from firecracker import MicroVM  # noqa: E402
from firecracker.vmm import VMMManager  # noqa: E402

vmms = VMMManager()


def step(text):
    print(text, flush=True)


def ask(path, method, target, body=None):
    """Asks the guest's agent, at the end of a vsock's socket."""
    body = json.dumps(body).encode() if body is not None else b""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(BOOT)
        stream.connect(path)
        stream.sendall(f"CONNECT {AGENT}\n".encode())
        reader = stream.makefile("rb")
        if not reader.readline().startswith(b"OK "):
            raise ConnectionError("the guest does not listen")
        head = f"{method} {target} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        stream.sendall(head.encode() + body)
        head, _, answer = reader.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), answer


def wait_for_agent(path):
    deadline = time.monotonic() + BOOT
    while time.monotonic() < deadline:
        try:
            if ask(path, "GET", "/v1/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the guest's agent does not answer")


def sh(path, request_id, script):
    """Runs a shell script in the guest, which has to end well."""
    request = {"request_id": request_id, "argv": ["sh", "-c", script]}
    status, answer = ask(path, "POST", "/v1/exec", request)
    record = json.loads(answer)
    assert status == 200 and record["exit_code"] == 0, (script, record)
    return record["stdout"]


def machine(name):
    return MicroVM(
        name=name,
        kernel_file=kernel,
        initrd_file=initramfs,
        base_rootfs=image,
        vcpu=1,
        memory=128,
        vsock_enabled=True,
        vsock_guest_cid=5,
    )


def created(vm, **how):
    said = vm.create(**how)
    assert said.endswith(" created"), said
    return vm.inspect()


first = machine("first")
facts = created(first)
vsock = f"/var/lib/firecracker/{facts['ID']}/v.sock"
config = first.config()
assert config["machine-config"]["mem_size_mib"] == 128, config
assert config["drives"][0]["path_on_host"] == facts["Rootfs"], config
wait_for_agent(vsock)
step("booted: the guest's agent answers over vsock")

first.pause()
assert vmms.get_vmm_state(facts["ID"]) == "Paused"
first.resume()
assert vmms.get_vmm_state(facts["ID"]) == "Running"
same = "cat /proc/sys/kernel/random/boot_id"
# The image stays where it is and is the same for both: what the guest knows of it must not change
# any more when the snapshot has been taken.
before = sh(
    vsock,
    "before",
    f"""
    mkdir /mnt && mount /dev/vda /mnt && echo kept > /mnt/file && mount -o remount,ro /mnt &&
    sync && echo kept > /run/kept && {same}
    """,
)
step("paused and resumed")

memory, state = f"{directory}/memory", f"{directory}/state"
first.snapshot(action="create", memory_path=memory, snapshot_path=state)
assert vmms.get_vmm_state(facts["ID"]) == "Running"
os.kill(facts["State"]["Pid"], signal.SIGKILL)
os.waitpid(facts["State"]["Pid"], 0)
step("snapshotted, and the process killed")

second = machine("second")
restored = created(
    second,
    snapshot=True,
    memory_path=memory,
    snapshot_path=state,
    rootfs_path=facts["Rootfs"],
)
assert restored["ID"] != facts["ID"]
assert vmms.get_vmm_state(restored["ID"]) == "Running"
config = second.config()
assert config["network-interfaces"][0]["host_dev_name"] == f"tap_{restored['ID']}", config
assert config["drives"][0]["path_on_host"] == facts["Rootfs"], config
# The guest's memory, its disk, and a new process.
script = f"{same}; cat /run/kept; echo 3 > /proc/sys/vm/drop_caches; cat /mnt/file"
after = sh(vsock, "after", script)
assert after == f"{before}kept\nkept\n", (before, after)
second.pause()
second.resume()
assert sh(vsock, "last", "echo on") == "on\n"
step("loaded: the guest goes on, and reads its disk")

ended = {}


def reap(pid):
    ended["status"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


reaper = threading.Thread(target=reap, args=(restored["State"]["Pid"],))
reaper.start()
said = second.delete()
reaper.join()
assert said.endswith(" is deleted"), said
# Its guest is switched off first; where that takes more than two seconds the SDK kills the process.
assert ended["status"] in (0, -signal.SIGKILL), ended
assert not os.path.exists(f"/var/lib/firecracker/{restored['ID']}")
step("deleted")
