# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs programs that nobody has read, such as a model's answers to programming tasks.

Each program has a process of its own. The kernel locks that process up before the program starts, by Landlock,
seccomp, resource limits and capabilities, for ordinary users and for root, and without namespaces, so in most
containers too. Where one of them is missing, nothing is run.

What is covered. The program cannot start a process, open a socket, send a signal to another process, read anything
but Python's libraries, write anything but 64 files of 1 MiB in an empty folder that is removed afterwards, use more
memory, threads and time than it was given, see the environment or the open files of the evaluation, or use the rights
of root. It passes if it and its tests run off their ends: no exit, however called, and nothing that it writes counts.

What is not covered. The tests share an interpreter with the program, so a program that means to deceive can still
pass, by objects that equal everything or by changing libraries that the tests use. It can see whether a file exists.
A flaw of the kernel is a way out. docs/metrics.md has the lists.
"""
