"""Invented reports in four languages, with their sentences judged by hand.

``report`` as a hospital writes it; ``expected`` are the (section, sentence) pairs of findings and
impression.
"""

REPORTS = {
    "es": [
        (
            "RADIOGRAFÍA DE TÓRAX PA Y LATERAL\n\nMOTIVO DE LA EXPLORACIÓN: Disnea. Tos.\n\n"
            "HALLAZGOS:\nSilueta cardíaca de tamaño normal. Nódulo de 1,5 cm. en el LSD, de aprox."
            " 3 meses de evolución. No se observa derrame pleural.\n\n"
            "IMPRESIÓN DIAGNÓSTICA:\n1. Nódulo pulmonar en LSD.\n2. Sin signos de neumonía.",
            [
                ("findings", "Silueta cardíaca de tamaño normal."),
                (
                    "findings",
                    "Nódulo de 1,5 cm. en el LSD, de aprox. 3 meses de evolución.",
                ),
                ("findings", "No se observa derrame pleural."),
                ("impression", "Nódulo pulmonar en LSD."),
                ("impression", "Sin signos de neumonía."),
            ],
        ),
        (
            "Hallazgos: Se compara con Rx. previa del 12.03.2021. Infiltrado en base izq. con"
            " broncograma aéreo. Dr. Pérez informado.Resto sin cambios.\n"
            "Conclusión: Neumonía en LII.\nFirmado por: Dra. Gómez",
            [
                ("findings", "Se compara con Rx. previa del 12.03.2021."),
                ("findings", "Infiltrado en base izq. con broncograma aéreo."),
                ("findings", "Dr. Pérez informado."),
                ("findings", "Resto sin cambios."),
                ("impression", "Neumonía en LII."),
            ],
        ),
        (
            "cambi pulmonar cronic sever . sign fibrosis bibasal . sin derram pleural .",
            [
                ("note", "cambi pulmonar cronic sever."),
                ("note", "sign fibrosis bibasal."),
                ("note", "sin derram pleural."),
            ],
        ),
        (
            "HALLAZGOS\nPULMONES: Sin consolidaciones.\nCORAZÓN: Índice cardiotorácico de 0,52.\n"
            "CONCLUSION\nCardiomegalia leve",
            [
                ("findings", "PULMONES: Sin consolidaciones."),
                ("findings", "CORAZÓN: Índice cardiotorácico de 0,52."),
                ("impression", "Cardiomegalia leve"),
            ],
        ),
    ],
    "pt": [
        (
            "RADIOGRAFIA DE TÓRAX\n\nIndicação clínica: Febre.\n\nAchados:\n"
            "- Área cardíaca normal\n"
            "- Não há derrame pleural\n- Opacidade de 2,3 x 1,8 cm. no terço médio do pulmão dir."
            " com bordas irregulares.\n\nImpressão: Nódulo pulmonar à direita. Sugere-se TC.",
            [
                ("findings", "Área cardíaca normal"),
                ("findings", "Não há derrame pleural"),
                (
                    "findings",
                    "Opacidade de 2,3 x 1,8 cm. no terço médio do pulmão dir. com bordas"
                    " irregulares.",
                ),
                ("impression", "Nódulo pulmonar à direita."),
                ("impression", "Sugere-se TC."),
            ],
        ),
        (
            "ANÁLISE:\nSeios costofrênicos livres.Cateter com extremidade em VCS, vs. átrio dir."
            " Comparado ao exame de 03/04/2019, sem alterações.\n\nOPINIÃO:\n"
            "1) Cardiomegalia.\n2) Ausência de pneumotórax.\nCRM: 12345",
            [
                ("findings", "Seios costofrênicos livres."),
                ("findings", "Cateter com extremidade em VCS, vs. átrio dir."),
                ("findings", "Comparado ao exame de 03/04/2019, sem alterações."),
                ("impression", "Cardiomegalia."),
                ("impression", "Ausência de pneumotórax."),
            ],
        ),
        (
            "Conclusão: Discreta atelectasia em base esq. associada a elevação da cúpula, p. ex."
            " por paresia. Dra. Souza avisada às 14:30 h.",
            [
                (
                    "impression",
                    "Discreta atelectasia em base esq. associada a elevação da cúpula, p. ex. por"
                    " paresia.",
                ),
                ("impression", "Dra. Souza avisada às 14:30 h."),
            ],
        ),
    ],
    "fr": [
        (
            "RADIOGRAPHIE THORACIQUE DE FACE\n\nINDICATION : Toux fébrile.\n\nRÉSULTATS :\n"
            "Opacité alvéolaire du lobe inf. droit, mesurant env. 3,5 cm. de grand axe. Absence"
            " d'épanchement pleural. Index cardio-thoracique à 0,48.\n\nCONCLUSION :\n"
            "Pneumopathie du LID. Pas de pneumothorax.",
            [
                (
                    "findings",
                    "Opacité alvéolaire du lobe inf. droit, mesurant env. 3,5 cm. de grand axe.",
                ),
                ("findings", "Absence d'épanchement pleural."),
                ("findings", "Index cardio-thoracique à 0,48."),
                ("impression", "Pneumopathie du LID."),
                ("impression", "Pas de pneumothorax."),
            ],
        ),
        (
            "Compte rendu : Cliché comparé à celui du 05.11.2020. Le Dr. Martin a été prévenu à"
            " 15 h 30.Pas d'œdème.\nAu total : 1. Cœur de taille normale 2. Poumons clairs\n"
            "Signé par : Pr. Durand",
            [
                ("findings", "Cliché comparé à celui du 05.11.2020."),
                ("findings", "Le Dr. Martin a été prévenu à 15 h 30."),
                ("findings", "Pas d'œdème."),
                ("impression", "Cœur de taille normale"),
                ("impression", "Poumons clairs"),
            ],
        ),
        (
            "RESULTATS\nPOUMONS : Pas de foyer.\nCŒUR : Pas de cardiomégalie. Cf. examen"
            " antérieur.\n\nSYNTHÈSE\nExamen normal",
            [
                ("findings", "POUMONS : Pas de foyer."),
                ("findings", "CŒUR : Pas de cardiomégalie."),
                ("findings", "Cf. examen antérieur."),
                ("impression", "Examen normal"),
            ],
        ),
    ],
    "de": [
        (
            "RÖNTGEN THORAX IN ZWEI EBENEN\n\nKlinische Angaben: Husten.\n\nBefund:\n"
            "Keine Infiltrate. Z.n. Sternotomie. Bds. Pleuraergüsse, re. größer als li. Kein"
            " Pneumothorax. Rundherd von ca. 1,5 cm im re. Unterlappen.\n\nBeurteilung:\n"
            "1. V.a. Rundherd re.\n2. Keine Stauung.",
            [
                ("findings", "Keine Infiltrate."),
                ("findings", "Z.n. Sternotomie."),
                ("findings", "Bds. Pleuraergüsse, re. größer als li."),
                ("findings", "Kein Pneumothorax."),
                ("findings", "Rundherd von ca. 1,5 cm im re. Unterlappen."),
                ("impression", "V.a. Rundherd re."),
                ("impression", "Keine Stauung."),
            ],
        ),
        (
            "BEFUND:\nZum Vergleich liegt die Aufnahme vom 12.03.2021 vor. Fraktur der 5. Rippe"
            " links. Herzgröße o.B. Höhenminderung von BWK 12. Kein Erguss.\n\nBEURTEILUNG:\n"
            "5. Rippe links frakturiert\n\nElektronisch signiert von: Prof. Dr. Weiß",
            [
                ("findings", "Zum Vergleich liegt die Aufnahme vom 12.03.2021 vor."),
                ("findings", "Fraktur der 5. Rippe links."),
                ("findings", "Herzgröße o.B."),
                ("findings", "Höhenminderung von BWK 12."),
                ("findings", "Kein Erguss."),
                ("impression", "5. Rippe links frakturiert"),
            ],
        ),
        (
            "BEFUND\nHERZ: Nicht vergrößert.\nLUNGE: Geringgr. Verdichtungen bds. basal, d.h. am"
            " ehesten Dystelektasen.Übriges unauffällig.\nZUSAMMENFASSUNG\nÄltere Veränderungen",
            [
                ("findings", "HERZ: Nicht vergrößert."),
                (
                    "findings",
                    "LUNGE: Geringgr. Verdichtungen bds. basal, d.h. am ehesten Dystelektasen.",
                ),
                ("findings", "Übriges unauffällig."),
                ("impression", "Ältere Veränderungen"),
            ],
        ),
    ],
}
