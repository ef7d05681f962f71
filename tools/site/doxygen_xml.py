#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prepares doxygen's XML for breathe.

Files in its index get their paths, by which breathe looks for them, instead of bare names. Namespaces lose their descriptions:
doxygen joins those of all headers, of which each describes its own part.

tools/site/doxygen_xml.py <folder of the XML>
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def with_paths(folder: pathlib.Path) -> None:
  index = folder / "index.xml"

  def path_of(match: re.Match[str]) -> str:
    text = (folder / f"{match[2]}.xml").read_text()
    return match[1] + re.findall(r'<location file="([^"]+)"', text)[-1] + match[3]

  pattern = r'(<compound refid="([^"]+)" kind="file"><name>)[^<]+(</name>)'
  index.write_text(re.sub(pattern, path_of, index.read_text()))


def without_descriptions(folder: pathlib.Path) -> None:
  for file in folder.glob("namespace*.xml"):
    tree = xml.parse(file)
    for namespace in tree.getroot().iter("compounddef"):
      for description in (*namespace.findall("briefdescription"), *namespace.findall("detaileddescription")):
        description.clear()
    tree.write(file, encoding="UTF-8", xml_declaration=True)


if __name__ == "__main__":
  with_paths(pathlib.Path(sys.argv[1]))
  without_descriptions(pathlib.Path(sys.argv[1]))
