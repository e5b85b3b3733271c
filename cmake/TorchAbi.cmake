# Torch's libraries and Ductile's pass texts and containers of the C++ library to each other, so both have to lay them out
# in the same way. `cmake -DTORCH_CXX_FLAGS=... -P TorchAbi.cmake` looks at these flags alone.
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR "This torch is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), and Ductile with the present one, so "
    "they cannot be linked. Take Debian's libtorch-dev, or a newer torch from pip; -DDUCTILE_TORCH=OFF "
    "builds without torch")
endif()
