"""Test cases for skills: read, run on any runtime, compared and reported.

form.py          what can stand in a case file; schema.py makes the JSON Schema, cases.schema.json is it
cases.py         reads case files
selection.py     -k; changes.py: --changed-since
runner.py        runs a plan of cases in sessions
fakes.py         fake tools with canned answers
expect.py        compares a result with what was expected; matching.py: one value; pictures.py: their sizes
coverage.py      which scripts no case runs
results.py       what came of it
report_junit.py  report_github.py  report_html.py
"""
