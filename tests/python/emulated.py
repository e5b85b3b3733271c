"""Hosts for tests: each has a network of its own, with one address, and other files than the rest where a test says so.

They are namespaces without names, which live as long as the processes that hold them, and those die with the test. Host 0
is the controller's."""

import ctypes
import os
import signal
import subprocess
import time
import unittest

LAUNCHER = "nsenter -t {host} -n -m"  # whose "host" is the process that holds it


def _die_with_the_test():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def address(host):
    return f"10.78.0.{host + 1}"


class Hosts:
    """Raises SkipTest where this machine allows none."""

    def __init__(self, count):
        self.held = []
        if os.geteuid() != 0:
            raise unittest.SkipTest("namespaces cannot be made here (root?)")
        try:
            hub = self._space()
            self._in(hub, "ip", "link", "add", "hub", "type", "bridge")
            self._in(hub, "ip", "link", "set", "hub", "up")
            self.hub, self.names = hub, []
            for host in range(count):
                self.names.append(self._space())
                self._in(hub, "ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns",
                         self.names[-1])
                self._in(hub, "ip", "link", "set", f"port{host}", "master", "hub", "up")
                self._in(self.names[-1], "ip", "addr", "add", f"{address(host)}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    self._in(self.names[-1], "ip", "link", "set", device, "up")
        except (OSError, subprocess.SubprocessError) as error:
            self.end()
            raise unittest.SkipTest(f"namespaces cannot be made here ({error}; iproute2? util-linux?)") from None

    def end(self):
        for process in self.held:
            process.kill()
            process.wait()

    def at_home(self, words):
        """The command, on host 0."""
        return ["nsenter", "-t", self.names[0], "-n", *words]

    def listed(self, places):
        """As --hosts takes them: so many workers on hosts 1, 2 ..."""
        return ",".join(f"{self.names[h]}={address(h)}:{n}" for h, n in enumerate(places, 1))

    def cut(self, host):
        self._in(self.hub, "ip", "link", "set", f"port{host}", "down")

    def restore(self, host):
        self._in(self.hub, "ip", "link", "set", f"port{host}", "up")

    def hide(self, host, file):
        self.replace(host, file, "/dev/null")

    def replace(self, host, file, by):
        """What the host has under the name of a file."""
        self._in(self.names[host], "mount", "--bind", by, file)

    def _space(self):
        process = subprocess.Popen(["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"],
                                   preexec_fn=_die_with_the_test)
        self.held.append(process)
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            with open(f"/proc/{process.pid}/comm") as file:
                if file.read() == "sleep\n":
                    return str(process.pid)
            time.sleep(0.01)
        raise OSError("unshare failed")

    @staticmethod
    def _in(space, *words):
        subprocess.run(["nsenter", "-t", space, "-n", "-m", *words], check=True, capture_output=True, timeout=60)
