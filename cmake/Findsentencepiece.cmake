# Finds SentencePiece as sentencepiece::sentencepiece, and its library that trains models, which only tests use, as
# sentencepiece::train. Its file for pkg-config may require files of protobuf that Debian 13 does not install
# with it, so this module searches header and libraries directly.
find_path(sentencepiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(sentencepiece_LIBRARY sentencepiece)
find_library(sentencepiece_train_LIBRARY sentencepiece_train)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(sentencepiece
  REQUIRED_VARS sentencepiece_LIBRARY sentencepiece_train_LIBRARY sentencepiece_INCLUDE_DIR)
if(sentencepiece_FOUND AND NOT TARGET sentencepiece::sentencepiece)
  add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(sentencepiece::sentencepiece PROPERTIES
    IMPORTED_LOCATION ${sentencepiece_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${sentencepiece_INCLUDE_DIR})
  add_library(sentencepiece::train UNKNOWN IMPORTED)
  set_target_properties(sentencepiece::train PROPERTIES
    IMPORTED_LOCATION ${sentencepiece_train_LIBRARY} INTERFACE_LINK_LIBRARIES sentencepiece::sentencepiece)
endif()
