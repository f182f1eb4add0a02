// Half precision is `_Float16` here, which needs no header.
#pragma once
