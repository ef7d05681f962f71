# SPDX-License-Identifier: Apache-2.0
"""What happens to open groups and sessions when the interpreter ends."""

import atexit

from reshard import _core, _log

# Registered on import: they run after the threads that Python waits for, and before modules go. The last runs first, so
# that events of groups that end are still in the log.
atexit.register(_log.end)
atexit.register(_core.shut_groups)
