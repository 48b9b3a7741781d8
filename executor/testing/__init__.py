"""Test cases for skills: read, run on any runtime, compared and reported.

cases.py         case files and their form; schema.py makes the JSON Schema, cases.schema.json is it
selection.py     -k; changes.py: --changed-since
runner.py        runs a plan of cases in sessions
expect.py        compares a result with what was expected; pictures.py knows their sizes
coverage.py      which scripts no case runs
results.py       what came of it
report_junit.py  report_github.py  report_html.py
"""
