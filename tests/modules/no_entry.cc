// SPDX-License-Identifier: Apache-2.0
extern "C" int some_other_entry() { return 0; }
