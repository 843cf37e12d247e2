"""How the package hangs together: no circles between its files."""

from __future__ import annotations

import grimp
import networkx

PACKAGE = "medclip_debias"


def test_no_two_files_import_each_other_by_any_way():
    """Imports inside functions and under TYPE_CHECKING count, wherever they are written."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    imports = networkx.DiGraph(
        (one, other)
        for one in graph.modules - {PACKAGE}
        for other in graph.find_modules_directly_imported_by(one) - {PACKAGE}
    )
    assert imports.number_of_edges() > 1000
    circles = [group for group in networkx.strongly_connected_components(imports) if len(group) > 1]
    assert not circles, f"these files import each other: {circles}"
