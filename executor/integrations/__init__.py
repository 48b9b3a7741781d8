"""The interfaces that other frameworks publish, each on a session, one file for each framework.

A module here imports its framework, which an extra of the same name installs; nothing else of `executor`
imports a module from here. Each translates names, values and errors and decides nothing else.
"""
