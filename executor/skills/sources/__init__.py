"""Where skills come from: folders, archives, git, buckets, bundles, all behind one interface.

base.py       `SkillSource`: what a source has to do, on one page
roots.py      from the text of a root to its source
directory.py  a folder of this host
fetched.py    what all sources have in common whose files are fetched whole: the last good copy, notes
archive.py    zip, tar, tar.gz, a bundle or one SKILL.md, over HTTP(S) or from a file
git.py        a commit of a repository
bucket.py     an S3-compatible bucket: the index first, a skill's files when they are wanted
bundle.py     one JSON file with skills in it: writes and reads
export.py     a skill as a folder or a zip
members.py    what the members of an archive may be called and how large they may be; unpacking
zips.py, tars.py  strict readers of the two formats
web.py        one download, bounded
cache.py      what was fetched, by content, for any number of processes
parsed.py     SKILL.md files that were read before, for large roots
progress.py   what whoever waits is told
"""
