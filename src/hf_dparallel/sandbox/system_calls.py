# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The system calls that a program in the sandbox may make, as filters for the kernel (seccomp)."""

import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence


# Machine: its audit architecture, and the column of its numbers in the tables of system calls.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name:x86_64:aarch64. The calls of an interpreter with threads and files, without those that reach other processes,
# make files that are not counted, or take more disk space than files may have bytes.
_ALLOWED = """
access:21:- alarm:37:- arch_prctl:158:- brk:12:214 chdir:80:49 clock_getres:229:114 clock_gettime:228:113
clock_nanosleep:230:115 close:3:57 close_range:436:436 dup2:33:- dup3:292:24 dup:32:23 epoll_create1:291:20
epoll_ctl:233:21 epoll_pwait:281:22 epoll_wait:232:- eventfd2:290:19 exit:60:93 exit_group:231:94 faccessat2:439:439
faccessat:269:48 fadvise64:221:223 fchdir:81:50 fdatasync:75:83 fstat:5:80 fstatfs:138:44 fsync:74:82 ftruncate:77:46
futex:202:98 getcpu:309:168 getcwd:79:17 getdents64:217:61 getegid:108:177 geteuid:107:175 getgid:104:176
getgroups:115:158 getitimer:36:102 getpeername:52:205 getpgid:121:155 getpgrp:111:- getpid:39:172 getppid:110:173
getpriority:140:141 getrandom:318:278 getresgid:120:150 getresuid:118:148 getrlimit:97:163 getrusage:98:165
getsid:124:156 getsockname:51:204 getsockopt:55:209 gettid:186:178 gettimeofday:96:169 getuid:102:174 lseek:8:62
lstat:6:- madvise:28:233 membarrier:324:283 mincore:27:232 mkdir:83:- mkdirat:258:34 mmap:9:222 mprotect:10:226
mremap:25:216 msync:26:227 munmap:11:215 nanosleep:35:101 newfstatat:262:79 pause:34:- pipe2:293:59 pipe:22:- poll:7:-
ppoll:271:73 pread64:17:67 preadv:295:69 pselect6:270:72 pwrite64:18:68 pwritev:296:70 read:0:63 readlink:89:-
readlinkat:267:78 readv:19:65 recvfrom:45:207 rename:82:- renameat:264:38 restart_syscall:219:128 rmdir:84:-
rseq:334:293 rt_sigaction:13:134 rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_yield:24:124 select:23:- sendfile:40:71 sendto:44:206
set_robust_list:273:99 set_tid_address:218:96 setitimer:38:103 shutdown:48:210 sigaltstack:131:132 stat:4:-
statfs:137:43 statx:332:291 sync:162:81 sysinfo:99:179 time:201:- times:100:153 umask:95:166 uname:63:160 unlink:87:-
unlinkat:263:35 wait4:61:260 waitid:247:95 write:1:64 writev:20:66
"""
# Called by the sandbox itself, or allowed for some arguments only.
_SPECIAL = """
capset:126:91 clone3:435:435 clone:56:220 fcntl:72:25 ioctl:16:29 kill:62:129 landlock_add_rule:445:445
landlock_create_ruleset:444:444 landlock_restrict_self:446:446 open:2:- openat:257:56 prlimit64:302:261 seccomp:317:277
socketpair:53:199 tgkill:234:131
"""

# From the kernel's headers linux/filter.h, linux/seccomp.h.
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
ALLOW, _NOTIFY, _ERROR, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_REFUSE = _ERROR | errno.EPERM
_OFFSET_OF_NUMBER, _OFFSET_OF_ARCHITECTURE, _OFFSET_OF_ARGUMENTS = 0, 4, 16
_CLONE_THREAD, _O_TMPFILE_BIT = 0x00010000, 0o20000000
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: nothing that names an owner of signals.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC: likewise.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)

_Instruction = tuple[int, int, int, int]


def is_known_machine() -> bool:
    """Returns whether the tables of system calls apply to this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES and sys.maxsize > 2**32


def syscall_numbers() -> dict[str, int]:
    """Returns the numbers of the system calls named in this module, by name, on this machine."""
    column = _ARCHITECTURES[platform.machine()][1]
    entries = [entry.split(":") for entry in (_ALLOWED + _SPECIAL).split()]
    return {name: int(numbers[column]) for name, *numbers in entries if numbers[column] != "-"}


def counted_calls() -> bytes:
    """Returns a filter that asks the supervisor about new threads, files and folders, and reports `sync` to it."""
    bodies = {name: [_return(_NOTIFY)] for name in ("sync", "mkdir", "mkdirat")}
    bodies["clone"] = _if_any_bit(0, _CLONE_THREAD, _NOTIFY)
    bodies |= {name: _if_any_bit(flags, os.O_CREAT, _NOTIFY) for name, flags in (("open", 1), ("openat", 2))}
    return make_filter(bodies, otherwise=ALLOW)


def permitted_calls() -> bytes:
    """Returns a filter under which all but harmless calls fail: no new processes, sockets, or signals to others."""
    bodies = {entry.partition(":")[0]: [_return(ALLOW)] for entry in _ALLOWED.split()}
    bodies["clone"] = [*_if_any_bit(0, _CLONE_THREAD, ALLOW), _return(_REFUSE)]
    # glibc then calls `clone`, whose flags can be read.
    bodies["clone3"] = [_return(_ERROR | errno.ENOSYS)]
    bodies |= {"open": _checked_open(1), "openat": _checked_open(2)}
    bodies |= {"ioctl": _if_one_of(1, _IOCTLS), "fcntl": _if_one_of(1, _FCNTLS)}
    bodies |= dict.fromkeys(("kill", "tgkill"), _if_one_of(0, [os.getpid()]))
    # Not SO_PEERPIDFD, a handle on the supervisor.
    bodies["getsockopt"] = [_load(2), (_IF_EQUAL, 0, 1, 77), _return(_REFUSE), _return(ALLOW)]
    # Reading limits, not setting them: no pointer to new ones.
    bodies["prlimit64"] = [_load(2, high=True), (_IF_EQUAL, 1, 0, 0), _return(_REFUSE), *_if_one_of(2, [0])]
    # A connected pair, for the event loop of asyncio: AF_UNIX, SOCK_STREAM. Datagram sockets could be connected anew.
    stream = [_load(1), (_AND, 0, 0, 0xF), (_IF_EQUAL, 0, 1, 1), _return(ALLOW), _return(_REFUSE)]
    bodies["socketpair"] = [_load(0), (_IF_EQUAL, 1, 0, 1), _return(_REFUSE), *stream]
    return make_filter(bodies, otherwise=_REFUSE)


def make_filter(bodies: dict[str, list[_Instruction]], otherwise: int) -> bytes:
    """Makes a filter that runs a body for each system call that the machine has, and else returns `otherwise`."""
    numbers = syscall_numbers()
    load_number = (_LOAD, 0, 0, _OFFSET_OF_NUMBER)
    architecture = (_IF_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()][0])
    program = [(_LOAD, 0, 0, _OFFSET_OF_ARCHITECTURE), architecture, _return(_KILL), load_number]
    for name, body in bodies.items():
        if name in numbers:
            program += [(_IF_EQUAL, 0, len(body) + 1, numbers[name]), *body, load_number]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, _return(otherwise)])


def _checked_open(flags: int) -> list[_Instruction]:
    """Returns checks that refuse unnamed files, which are not counted, and emptying files opened for reading."""
    return [
        *_if_any_bit(flags, _O_TMPFILE_BIT, _ERROR | errno.EOPNOTSUPP),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_IF_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _return(_REFUSE),
        _return(ALLOW),
    ]


def _if_any_bit(argument: int, bits: int, action: int) -> list[_Instruction]:
    return [_load(argument), (_IF_ANY_BIT, 0, 1, bits), _return(action)]


def _if_one_of(argument: int, values: Sequence[int]) -> list[_Instruction]:
    checks = [step for value in values for step in ((_IF_EQUAL, 0, 1, value), _return(ALLOW))]
    return [_load(argument), *checks, _return(_REFUSE)]


def _load(argument: int, high: bool = False) -> _Instruction:
    """Returns a load of the lower half of an argument (both machines are little-endian), or of the upper one."""
    return (_LOAD, 0, 0, _OFFSET_OF_ARGUMENTS + 8 * argument + 4 * high)


def _return(action: int) -> _Instruction:
    return (_RETURN, 0, 0, action)
