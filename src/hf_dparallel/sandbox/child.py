# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The inside of the sandbox: a script that locks its own process up for good and then runs a program in it.

Started by `runner.py` as `python -P -s -B child.py FD`; what it guarantees is written there. It imports
nothing of this package, whose imports take seconds.
"""

import array
import collections
import ctypes
import errno
import itertools
import json
import operator
import os
import platform
import socket
import struct
import sys
import sysconfig
from _thread import allocate_lock, stack_size, start_new_thread
from collections.abc import Sequence
from typing import Any


if sys.platform != "win32":  # where `is_known_machine` is all that is used
    import resource

# Machine: its audit architecture, and the column of its numbers in the tables of system calls.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name:x86_64:aarch64. What an interpreter with threads and files needs, and nothing that reaches other processes.
_ALLOWED = """
access:21:- alarm:37:- arch_prctl:158:- brk:12:214 chdir:80:49 clock_getres:229:114 clock_gettime:228:113
clock_nanosleep:230:115 close:3:57 close_range:436:436 dup2:33:- dup3:292:24 dup:32:23 epoll_create1:291:20
epoll_ctl:233:21 epoll_pwait:281:22 epoll_wait:232:- eventfd2:290:19 exit:60:93 exit_group:231:94 faccessat2:439:439
faccessat:269:48 fadvise64:221:223 fallocate:285:47 fchdir:81:50 fdatasync:75:83 flock:73:32 fstat:5:80
fstatfs:138:44 fsync:74:82 ftruncate:77:46 futex:202:98 getcpu:309:168 getcwd:79:17 getdents64:217:61 getegid:108:177
geteuid:107:175 getgid:104:176 getgroups:115:158 getitimer:36:102 getpeername:52:205 getpgid:121:155 getpgrp:111:-
getpid:39:172 getppid:110:173 getpriority:140:141 getrandom:318:278 getresgid:120:150 getresuid:118:148
getrlimit:97:163 getrusage:98:165 getsid:124:156 getsockname:51:204 getsockopt:55:209 gettid:186:178
gettimeofday:96:169 getuid:102:174 lseek:8:62 lstat:6:- madvise:28:233 membarrier:324:283
mincore:27:232 mkdir:83:- mkdirat:258:34 mmap:9:222 mprotect:10:226 mremap:25:216 msync:26:227 munmap:11:215
nanosleep:35:101 newfstatat:262:79 pause:34:- pipe2:293:59 pipe:22:- poll:7:- ppoll:271:73 pread64:17:67 preadv:295:69
pselect6:270:72 pwrite64:18:68 pwritev:296:70 read:0:63 readlink:89:- readlinkat:267:78 readv:19:65 recvfrom:45:207
rename:82:- renameat2:316:276 renameat:264:38 restart_syscall:219:128 rmdir:84:- rseq:334:293 rt_sigaction:13:134
rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133 rt_sigtimedwait:128:137
sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_getaffinity:204:123 sched_getparam:143:121
sched_getscheduler:145:120 sched_yield:24:124 select:23:- sendfile:40:71 sendto:44:206 set_robust_list:273:99
set_tid_address:218:96 setitimer:38:103 shutdown:48:210 sigaltstack:131:132 stat:4:- statfs:137:43 statx:332:291
sync:162:81 sysinfo:99:179 time:201:- times:100:153 umask:95:166 uname:63:160 unlink:87:- unlinkat:263:35 wait4:61:260
waitid:247:95 write:1:64 writev:20:66
"""
# Called by the sandbox itself, or allowed for some arguments only.
_SPECIAL = """
capset:126:91 clone3:435:435 clone:56:220 fcntl:72:25 ioctl:16:29 kill:62:129 landlock_add_rule:445:445
landlock_create_ruleset:444:444 landlock_restrict_self:446:446 open:2:- openat:257:56 prlimit64:302:261 seccomp:317:277
socketpair:53:199 tgkill:234:131
"""

# Of the kernel's headers linux/filter.h, linux/seccomp.h.
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _NOTIFY, _ERROR, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_OFFSET_OF_NUMBER, _OFFSET_OF_ARCHITECTURE, _OFFSET_OF_ARGUMENTS = 0, 4, 16
_CLONE_THREAD, _O_TMPFILE_BIT = 0x00010000, 0o20000000
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: nothing that names an owner of signals.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC: likewise.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)

# Of linux/landlock.h: bits of the rights to files, and how many there are from which version on.
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = (
    1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 14)
)
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

_Instruction = tuple[int, int, int, int]


def syscall_numbers() -> dict[str, int]:
    """Returns the numbers of the system calls named in this module, by name, on this machine."""
    column = _ARCHITECTURES[platform.machine()][1]
    entries = [entry.split(":") for entry in (_ALLOWED + _SPECIAL).split()]
    return {name: int(numbers[column]) for name, *numbers in entries if numbers[column] != "-"}


def is_known_machine() -> bool:
    """Whether the tables of system calls hold for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES and sys.maxsize > 2**32


def main() -> None:
    """Reads settings and program from the socket that the first argument numbers, and never returns."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(b"".join(iter(lambda: control.recv(1 << 16), b"")))
    _limit_resources(settings["cpu_s"], settings["memory_bytes"], settings["file_bytes"])
    _give_up_privileges()
    _restrict_files(settings["folder"])
    listener = _install_filter(_counted_calls(), flags=1 << 3)  # SECCOMP_FILTER_FLAG_NEW_LISTENER
    control.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)
    control.close()
    _install_filter(_permitted_calls())
    stack_size(settings["stack_bytes"])
    # There is no Python frame below the program's, so there is none whose lines it could make to be skipped: the loop
    # over the steps is C code. `sync` calls the supervisor, which looks at the stack pointer. It sees from the first
    # two calls that those outside the program are alike.
    steps: tuple[tuple[Any, ...], ...] = ((os.sync,), (os.sync,), (exec, settings["program"], {}), (os.sync,))
    del settings
    start_new_thread(collections.deque, (itertools.starmap(operator.call, steps), 0))
    forever = allocate_lock()
    forever.acquire()
    forever.acquire()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments) -> int:
    result = _libc().syscall(syscall_numbers()[name], *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def _limit_resources(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _give_up_privileges() -> None:
    prctl = _libc().prctl
    if prctl(1, 9, 0, 0, 0) or prctl(38, 1, 0, 0, 0):  # PR_SET_PDEATHSIG to SIGKILL, PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl failed")
    # The capabilities of root, such as that of raising limits.
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def _restrict_files(folder: str) -> None:
    try:
        version = _call("landlock_create_ruleset", None, 0, 1)
    except OSError as error:
        raise OSError(
            error.errno, f"the kernel has no Landlock, which Linux 5.13 and newer have unless it is off ({error})"
        ) from error
    handled = (1 << _NUM_RIGHTS[min(version, max(_NUM_RIGHTS))]) - 1
    # Files; from version 4 on TCP; from version 6 on signals and abstract sockets.
    attributes = struct.pack("QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call("landlock_create_ruleset", attributes, len(attributes), 0)
    own = _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
    rights = dict.fromkeys(_library_folders(), _READ_FILE | _READ_DIR)
    rights |= {"/dev/null": _READ_FILE | _WRITE_FILE, "/dev/urandom": _READ_FILE, "/etc/ld.so.cache": _READ_FILE}
    rights |= {"/usr/share/zoneinfo": _READ_FILE | _READ_DIR, folder: own}
    for path, allowed in rights.items():
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        _call("landlock_add_rule", ruleset, 1, struct.pack("=Qi", allowed & handled, target), 0)
        os.close(target)
    _call("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _library_folders() -> set[str]:
    paths = sysconfig.get_paths()
    installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return installed | {f"{sys.base_prefix}/lib", "/lib", "/lib64", "/usr/lib", "/usr/lib64"}


def _install_filter(program: Sequence[_Instruction], flags: int = 0) -> int:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    return _call("seccomp", 1, flags, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer)))


def _counted_calls() -> list[_Instruction]:
    """A filter that asks the supervisor about new threads, files and folders, and tells it of `sync`."""
    numbers = syscall_numbers()
    program = _preamble()
    for name in ("sync", "mkdir", "mkdirat"):
        program += _for_call(numbers.get(name), [_return(_NOTIFY)])
    program += _for_call(numbers["clone"], _if_any_bit(0, _CLONE_THREAD, _NOTIFY))
    for name, flags in (("open", 1), ("openat", 2)):
        program += _for_call(numbers.get(name), _if_any_bit(flags, os.O_CREAT, _NOTIFY))
    return [*program, _return(_ALLOW)]


def _permitted_calls() -> list[_Instruction]:
    """A filter under which all but harmless calls fail: none that makes processes, sockets or signals to others."""
    numbers = syscall_numbers()
    program = _preamble()
    for entry in _ALLOWED.split():
        program += _for_call(numbers.get(entry.partition(":")[0]), [_return(_ALLOW)])
    refused = _ERROR | errno.EPERM
    program += _for_call(numbers["clone"], _if_any_bit(0, _CLONE_THREAD, _ALLOW) + [_return(refused)])
    # glibc then calls `clone`, whose flags can be read.
    program += _for_call(numbers["clone3"], [_return(_ERROR | errno.ENOSYS)])
    for name, flags in (("open", 1), ("openat", 2)):
        program += _for_call(numbers.get(name), _checked_open(flags))
    for name, permitted in (("ioctl", _IOCTLS), ("fcntl", _FCNTLS)):
        program += _for_call(numbers[name], _if_one_of(1, permitted) + [_return(refused)])
    for name in ("kill", "tgkill"):
        program += _for_call(numbers[name], _if_one_of(0, [os.getpid()]) + [_return(refused)])
    # Reading limits, not setting them.
    no_pointer = [_load(2, high=True), (_IF_EQUAL, 0, 3, 0), _load(2), (_IF_EQUAL, 0, 1, 0), _return(_ALLOW)]
    program += _for_call(numbers["prlimit64"], no_pointer + [_return(refused)])
    # A connected pair, for the event loop of asyncio: AF_UNIX, SOCK_STREAM. Datagram sockets could be connected anew.
    stream = [_load(1), (_AND, 0, 0, 0xF), (_IF_EQUAL, 0, 1, 1), _return(_ALLOW), _return(refused)]
    program += _for_call(numbers["socketpair"], [_load(0), (_IF_EQUAL, 1, 0, 1), _return(refused), *stream])
    return [*program, _return(refused)]


def _checked_open(flags: int) -> list[_Instruction]:
    """No files without a name, which would not be counted, and none emptied that were opened to be read."""
    return [
        *_if_any_bit(flags, _O_TMPFILE_BIT, _ERROR | errno.EOPNOTSUPP),
        _load(flags),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_IF_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _return(_ERROR | errno.EPERM),
        _return(_ALLOW),
    ]


def _preamble() -> list[_Instruction]:
    architecture = _ARCHITECTURES[platform.machine()][0]
    load = (_LOAD, 0, 0, _OFFSET_OF_ARCHITECTURE)
    return [load, (_IF_EQUAL, 1, 0, architecture), _return(_KILL), (_LOAD, 0, 0, _OFFSET_OF_NUMBER)]


def _for_call(number: int | None, body: list[_Instruction]) -> list[_Instruction]:
    """Runs `body`, which may load an argument, for one system call only, where the machine has it."""
    if number is None:
        return []
    return [(_IF_EQUAL, 0, len(body) + 1, number), *body, (_LOAD, 0, 0, _OFFSET_OF_NUMBER)]


def _if_any_bit(argument: int, bits: int, action: int) -> list[_Instruction]:
    return [_load(argument), (_IF_ANY_BIT, 0, 1, bits), _return(action)]


def _if_one_of(argument: int, values: Sequence[int]) -> list[_Instruction]:
    checks = [step for value in values for step in ((_IF_EQUAL, 0, 1, value), _return(_ALLOW))]
    return [_load(argument), *checks]


def _load(argument: int, high: bool = False) -> _Instruction:
    """Loads the lower half of an argument (both machines are little-endian), or the upper one."""
    return (_LOAD, 0, 0, _OFFSET_OF_ARGUMENTS + 8 * argument + 4 * high)


def _return(action: int) -> _Instruction:
    return (_RETURN, 0, 0, action)


if __name__ == "__main__":
    main()
