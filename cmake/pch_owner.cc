// Its target compiles a precompiled header that others use; see DuctilePch.cmake.
int main() {}
