// Levels spconv and stages: coordinate levels and the maps between them, built together on a GPU.
irdl.dialect @spconv {
  irdl.operation @level_maps {
    %coords = irdl.base "!spconv.coords"
    %places = irdl.base "!builtin.tensor"
    %levels = irdl.any
    %maps = irdl.any
    irdl.operands(coords: %coords, places: %places)
    irdl.results()
    irdl.attributes {"levels" = %levels, "maps" = %maps}
  }
}
