"""Runs in the sandbox: LibreOffice opens a workbook, a macro recalculates and stores it."""

# ruff: noqa: E501
import pathlib
import subprocess

import openpyxl

basic = pathlib.Path("/tmp/home/.config/libreoffice/4/user/basic/Standard")
subprocess.run(["soffice", "--headless", "--terminate_after_init"], check=False)
basic.mkdir(parents=True, exist_ok=True)
basic.joinpath("Module1.xba").write_text("""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE script:module PUBLIC "-//OpenOffice.org//DTD OfficeDocument 1.0//EN" "module.dtd">
<script:module xmlns:script="http://openoffice.org/2000/script" script:name="Module1" script:language="StarBasic">
Sub Recalculate()
  ThisComponent.calculateAll()
  ThisComponent.store()
  ThisComponent.close(True)
End Sub
</script:module>""")
basic.joinpath("script.xlb").write_text("""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE library:library PUBLIC "-//OpenOffice.org//DTD OfficeDocument 1.0//EN" "library.dtd">
<library:library xmlns:library="http://openoffice.org/2000/library" library:name="Standard" library:readonly="false"
 library:passwordprotected="false"><library:element library:name="Module1"/></library:library>""")
macro = "vnd.sun.star.script:Standard.Module1.Recalculate?language=Basic&location=application"
done = subprocess.run(["soffice", "--headless", "--norestore", macro, "/workspace/work/sum.xlsx"])
print("exit", done.returncode)
print("value", openpyxl.load_workbook("/workspace/work/sum.xlsx", data_only=True).active["A3"].value)
