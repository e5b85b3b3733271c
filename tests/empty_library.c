// A shared library that exports no model.
int unrelated(void) { return 1; }
