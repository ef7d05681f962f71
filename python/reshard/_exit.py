# SPDX-License-Identifier: Apache-2.0
"""What happens to open groups and sessions when the interpreter ends."""

import atexit

from reshard import _core

# Registered on import: it runs after the threads that Python waits for, and before modules go.
atexit.register(_core.shut_groups)
